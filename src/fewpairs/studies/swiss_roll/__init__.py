"""The paper's main study: a Gaussian onto a Swiss roll, and everything around it."""
