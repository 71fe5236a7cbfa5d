"""Whether a cache ever changes an answer: `prompts.py` makes them, `placing.py` hides the needles, `arms.py` asks servers,
`verdicts.py` compares. `python -m eval.lossless`.
"""
