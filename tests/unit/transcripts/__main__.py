"""Write each transcript anew."""

from tests.unit.transcripts import FOLDER, renewed

for file in sorted(FOLDER.glob("*.txt")):
    file.write_text(renewed(file.read_text()))
