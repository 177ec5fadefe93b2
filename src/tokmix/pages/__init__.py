"""Pages in a browser: the report of runs and papers, and a page to try a model on."""
