"""Families of plans: what each kind is made of, where its search begins, and what it is held against.

`mixture` has slopes and atoms, `classes` has networks. A new kind of plan is a new file here; search, training and stacking know
`base` alone.
"""
