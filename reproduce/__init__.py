"""The claims of three papers, run again: `tokmix papers`. Work is a list of jobs (job.py); all that is shown comes from results files."""
