"""Write each transcript anew."""

from tests.real.transcripts import FOLDER, played

for file in sorted(FOLDER.glob("*.txt")):
    file.write_text(played(file.read_text()))
