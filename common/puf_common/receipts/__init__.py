"""Receipts: their content, file, signature and page, and the evidence in them."""
