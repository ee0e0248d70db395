# The base of the others: Debian with Python, by debootstrap.
FROM scratch
ADD base.tar /
CMD ["python3"]
