"""Operations that have, or will have, more than one implementation.

One file per operation. The plain-torch version is the definition; a device kernel stands next to
it in the same file or folder and is tested against it.
"""
