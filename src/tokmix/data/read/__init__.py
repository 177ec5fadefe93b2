"""Files -> rows of a table or pieces of plain text."""
