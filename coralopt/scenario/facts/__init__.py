"""What a scenario consists of once every name is looked up, as frozen dataclasses without the rules of the file."""
