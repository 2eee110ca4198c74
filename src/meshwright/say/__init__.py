"""What forecasts, plans and sweeps say: a document made in one place for each subject, rendered for terminal, Markdown, HTML and JSON."""
