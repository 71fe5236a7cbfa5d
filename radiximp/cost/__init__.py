"""Fetch a cached prefix or compute it again: a roofline model, its specs, and the decision as a value.

Owns formulas and predictions in seconds; reads no clock, moves no KV. Imports neither torch nor sglang. `radiximp
breakeven` calls it; `PrefillModel`, `Transfer` and `best_split` are made to be called with measured numbers as well.
"""
