"""Beyond the papers: all causal mixers and hybrids of them on one page."""
