"""Lines of results, and texts between the marks of a page."""

import pytest

from benchmarks import documents


def test_only_the_text_between_the_marks_is_rewritten():
  text = 'a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n'
  new = documents.rewritten(text, 'x', 'new')
  assert new == 'a\n<!-- x: begin -->\nnew\n<!-- x: end -->\nb\n'
  assert documents.rewritten(new, 'x', 'new') == new
  for other in (text.replace('end', 'fin'), text.replace('begin', 'start'), ''):
    with pytest.raises(ValueError, match='the document must have the marks'):
      documents.rewritten(other, 'x', 'new')


def test_a_page_without_one_of_the_marks_is_left_as_it_was(tmp_path):
  page = tmp_path / 'page.md'
  text = '<!-- x: begin -->\nold\n<!-- x: end -->\n'
  page.write_text(text, encoding='utf-8')
  with pytest.raises(ValueError, match='y: begin'):
    documents.put(str(page), {'x': 'new', 'y': 'new'})
  assert page.read_text(encoding='utf-8') == text
  documents.put(str(page), {'x': '±'})
  assert page.read_text(encoding='utf-8') == text.replace('old', '±')
  documents.put('', {'x': 'new'})  # No document.


def test_line_that_was_cut_off_is_ignored_and_the_last_of_a_name_counts(tmp_path):
  assert documents.read(tmp_path) == {}
  documents.append(tmp_path, {'name': 'a', 'row': 'a', 'n': 1})
  with open(tmp_path / documents.RESULTS, 'a', encoding='utf-8') as file:
    file.write('{"name": "b", "row')
  assert list(documents.read(tmp_path)) == ['a']
  documents.append(tmp_path, {'name': 'b', 'row': 'b', 'n': 2})
  documents.append(tmp_path, {'name': 'a', 'row': 'a', 'n': 3})
  results = documents.read(tmp_path)
  assert {name: line['n'] for name, line in results.items()} == {'a': 3, 'b': 2}
  assert documents.read(tmp_path, key='n')[2]['name'] == 'b'
  assert documents.of_row(results, 'b') == [{'name': 'b', 'row': 'b', 'n': 2}]


def test_percent_has_the_deviation_of_a_sample():
  assert documents.percent([0.5]) == '50.0'
  assert documents.percent([0.96, 0.97, 0.98]) == '97.0 ± 1.0'
