"""Result files as web pages: one self-contained HTML file each."""
