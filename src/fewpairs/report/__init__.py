"""Figures and pages: arrays, words and tables in, pictures and one HTML page with its Markdown out.

Nothing here knows what the figures are about.
"""
