# Joins the files of an install script. -D EXTENSION, OUTPUT, FILES.
set(script "\\echo Use \"CREATE EXTENSION ${EXTENSION}\" to load this file. \\quit\n")
foreach(file ${FILES})
  file(READ ${file} text)
  string(APPEND script "\n${text}")
endforeach()
file(WRITE ${OUTPUT} "${script}")
