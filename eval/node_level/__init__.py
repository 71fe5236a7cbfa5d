"""Whether what the model attends to says which nodes of the prefix tree are used again: `traffic.py` observes and arranges requests,
`information.py` asks what it adds to recency, frequency, role and depth, `replay.py` whether it raises the hit rate. `python -m eval.node_level`.
"""
