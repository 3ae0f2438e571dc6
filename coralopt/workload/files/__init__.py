"""Files of this floor: text that may be gzipped, tables in CSV and Parquet, documents in JSON."""
