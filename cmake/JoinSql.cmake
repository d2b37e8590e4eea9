# Joins the files of a script that CREATE or ALTER EXTENSION runs, and psql must not. -D OUTPUT, FILES, EXTENSION.
set(script "\\echo Use \"CREATE EXTENSION ${EXTENSION}\" or \"ALTER EXTENSION ${EXTENSION} UPDATE\" to load this file. \\quit\n")
foreach(file ${FILES})
  file(READ ${file} text)
  string(APPEND script "\n${text}")
endforeach()
file(WRITE ${OUTPUT} "${script}")
