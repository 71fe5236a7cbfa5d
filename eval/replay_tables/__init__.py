"""The tables of the replay: `plan.py` says what is replayed, `runner.py` replays it, `verdicts.py` judges, the rest writes.

    python -m eval.replay_tables --part main,adversarial

`variants.py` takes pieces of the policy away, `cost.py` measures time. Nothing here is imported by the product.
"""
