# The recipe starts anew (overwrite_output_dir): what another job has left is set aside, once. The folder tells a later
# start of this job, which goes on, from its first; it gets its name when all is in it
earlier="$output/earlier-$RDZV_ID"
if [ ! -e "$earlier" ]; then
  mkdir -p "$earlier.part"
  find "$output" -mindepth 1 -maxdepth 1 ! -name 'earlier-*' -exec mv -t "$earlier.part" {} +
  mv "$earlier.part" "$earlier"
fi
