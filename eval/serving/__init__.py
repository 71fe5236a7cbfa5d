"""What a user waits for under each policy: `traffic.py` makes the sessions, `clients.py` plays them closed-loop against a server,
`verdicts.py` compares. `python -m eval.serving`.
"""
