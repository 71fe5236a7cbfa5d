"""The annotated tree: SGLang's Python tree core with a history on every node, and who chooses victims."""
