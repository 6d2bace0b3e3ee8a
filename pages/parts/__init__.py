"""What several pages share: the database, the theme, charts with their text, tables, the methods' forms."""
