"""Parts of the page Experiments: the table of experiments and the tables of their runs."""
