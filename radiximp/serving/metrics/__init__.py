"""What an operator can watch: `tally.py` counts in plain Python, `table.py` names it, `export.py` brings it to SGLang's `/metrics`.

The table is the one source of what is registered, of `docs/metrics.md` (`python -m radiximp.serving.metrics`) and of the tests.
Nothing here runs unless the server was started with `--enable-metrics`, but for the tally itself.
"""
