"""Requests to be forgotten: filing, following, withdrawing, receipts."""
