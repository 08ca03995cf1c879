"""How anything is learnt: objectives, smoothing, minibatches, populations trained at once, the loop, its end.

A plan or network comes in with random weights and goes out with learnt ones. Which settings suit the data is not asked here.
"""
