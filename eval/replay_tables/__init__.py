"""The tables of the replay: what is replayed (`plan.py`), how (`runner.py`), and what the numbers say (`tables.py`, `studies.py`).

    python -m eval.replay_tables --part main,adversarial

`variants.py` takes pieces of the policy away, `cost.py` measures time. Nothing here is imported by the product.
"""
