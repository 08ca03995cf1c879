"""What users meet: scikit-learn estimators with `fit`, `sample`, `predict`, `score`, `save`; and `load`.

An estimator checks what comes in, asks the floors below to learn, and answers in the user's units. No study, no printing.
"""
