"""Knowledge transfer: swapped layers of a Hugging Face model learn what the old attention gave (see run.py)."""
