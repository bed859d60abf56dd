# Loaded by second_file.rb.

def fourth = work

fourth
