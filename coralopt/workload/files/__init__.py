"""The ground of this floor: tables in CSV and Parquet, documents in JSON, checks of arguments."""
