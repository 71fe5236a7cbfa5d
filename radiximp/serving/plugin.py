def register() -> None:
    from radiximp.serving import cpu

    cpu.install()
