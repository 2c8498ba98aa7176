# What click prints for fish and the script that reads it differ from version to version: taken from the click that is here.
gpuhook completion fish | source
