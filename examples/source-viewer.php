<?php
// Shows a source file with numbered lines, highlighted words, and their frequencies. The
// work of a request depends on the size of the file. scripts/demands records it.
$files = glob('/usr/lib/python3*/*.py');
$text = file_get_contents($files[(int) ($_GET['file'] ?? 0) % count($files)]);
$keywords = '/\b(def|class|return|if|elif|else|for|while|import|from|try|except|with|yield)\b/';
$words = [];
echo '<pre>';
foreach (explode("\n", $text) as $number => $line) {
    foreach (preg_split('/\W+/', $line, -1, PREG_SPLIT_NO_EMPTY) as $word) {
        $words[$word] = ($words[$word] ?? 0) + 1;
    }
    printf("%5d %s\n", $number + 1, preg_replace($keywords, '<b>$1</b>', htmlspecialchars($line)));
}
arsort($words);
foreach (array_slice($words, 0, 20) as $word => $count) {
    printf("%s: %d\n", $word, $count);
}
echo '</pre>';
