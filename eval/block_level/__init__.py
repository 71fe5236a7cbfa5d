"""Whether attention says which pages are wanted next: `observed.py` reads a model's attention over conversations, `page_caches.py` plays
caches of pages against it, `hotspots.py` compares queries with their aggregate, `verdicts.py` judges. `python -m eval.block_level`.
"""
