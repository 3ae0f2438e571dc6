"""What people look at: tables, drawings and web pages; each module is imported by itself, since most commands need one."""
