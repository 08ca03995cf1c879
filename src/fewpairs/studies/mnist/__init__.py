"""Digits and clothes with few labels: accuracy by labelled and unlabelled images, beside rivals."""
