"""Values in message bodies: decodes them into columns, and reads changes of database tables."""
