"""Studies: one file for each table or figure of the paper, each run by one command: `fewpairs reproduce …`.

A study is a list of *cells*, independent pieces of work that are run in parallel and kept in files (`cells`), and a page that
is made of what they found.
"""
