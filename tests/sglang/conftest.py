import pytest


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread():
    """The tensors here are tiny: a second thread only waits, and for long on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
