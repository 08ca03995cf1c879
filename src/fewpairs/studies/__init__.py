"""Studies of the paper, each run by one command: `fewpairs reproduce …`; and the demo.

A study is a folder: a list of *cells*, independent pieces of work that run in parallel and are kept in files (`cells`), and a
page that is made of what they found. What several studies need stands beside the folders.
"""
