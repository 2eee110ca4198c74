"""The output of commands: a document for each subject, made in one place, rendered for terminal, Markdown, HTML and JSON."""
