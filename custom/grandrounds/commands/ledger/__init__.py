"""Commands for a site's privacy ledger."""
