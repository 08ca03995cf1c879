"""Pairs that were selected with a known bias, and what each way of weighing them brings."""
