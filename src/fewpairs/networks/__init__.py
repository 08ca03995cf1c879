"""Networks of torch: perceptrons, classifiers, maps of images.

They take rows and give numbers. Nothing here knows what is learnt with them, from what, or how.
"""
