"""The run on disk: its folder, manifest, table schemas, writer, reader and SQL. The ground floor."""
