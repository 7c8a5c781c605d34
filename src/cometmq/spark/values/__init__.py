"""Values in message bodies: decoding them into columns, and changes of tables as they carry."""
