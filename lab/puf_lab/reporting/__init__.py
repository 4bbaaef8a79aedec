"""Results of experiments as files, tables, figures and one HTML page."""
