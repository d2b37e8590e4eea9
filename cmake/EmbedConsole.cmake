# Makes a C++ file of the files of the console: console.css becomes console_css. -D OUTPUT, FILES.
set(source "#include \"console_files.hpp\"\n\nnamespace outboxctl {\n")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  string(MAKE_C_IDENTIFIER ${name} name)
  file(READ ${file} text)
  string(APPEND source "\nconst char* const ${name} = R\"console(${text})console\";\n")
endforeach()
file(WRITE ${OUTPUT} "${source}\n}  // namespace outboxctl\n")
