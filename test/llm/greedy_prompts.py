"""Texts that greedy answers are compared after: prompts of language, facts, code, tables and verses."""

PROMPTS = ["The capital of France is", "def fibonacci(n):", "Water freezes at",
           "Photosynthesis is the process by which",
           "Once upon a time, in a small village", "Question: What is the speed of light?\nAnswer:"]
ONE_WAY = ["1, 2, 3, 4, 5, 6, 7, 8,", "2, 4, 6, 8, 10, 12, 14,", "10, 20, 30, 40, 50, 60,",
           "1900, 1901, 1902, 1903, 1904,", "100, 99, 98, 97, 96, 95,", "10 9 8 7 6 5 4 3 2 1 10 9 8 7 6 5 4",
           "0 1 0 1 0 1 0 1 0 1", "a, b, c, d, e, f, g,", "red green blue red green blue red green",
           "one, two, three, four, five, six,", "north east south west north east south west",
           "January, February, March, April, May, June, July, August, September, October, November,",
           "To be, or not to be, that is the question:\nTo be, or not to be, that is the question:\nTo be,",
           "Mary had a little lamb, its fleece was white as snow.\nMary had a little lamb, its fleece was",
           "Row, row, row your boat, gently down the stream.\nRow, row, row your boat,",
           "The cat sat on the mat. The cat sat on the mat. The cat sat on the mat. The cat",
           "1 + 1 = 2\n2 + 1 = 3\n3 + 1 = 4\n4 + 1 = 5\n", "5 x 1 = 5\n5 x 2 = 10\n5 x 3 = 15\n5 x 4 = 20\n",
           "<li>1</li>\n<li>2</li>\n<li>3</li>\n<li>4</li>\n", "1. one\n2. two\n3. three\n4. four\n5. five\n"]
"""Texts that go on in one way more often than not."""
MORE = ["The quick brown fox", "Paris is the capital of", "The sun rises in the", "Two plus two equals",
        "The first president of the United States was", "import numpy as np\n",
        "for i in range(10):\n    print(", "#include <stdio.h>\nint main() {", "SELECT name FROM users WHERE",
        "<html>\n<head>\n<title>", "Dear Sir or Madam,", "A recipe for pancakes:\n1.",
        "The days of the week are Monday,", "The planets of the solar system are Mercury,",
        "The alphabet: A, B, C, D,", "The colors of the rainbow are red,", "Roses are red, violets are",
        "Happy birthday to you, happy birthday to", "Twinkle, twinkle, little star,",
        "In the beginning God created the", "We hold these truths to be self-evident, that all men are",
        "Four score and seven years ago our fathers", "It was the best of times, it was the worst of",
        "Call me", "The Pythagorean theorem states that", "E = mc^2 means that", "The human heart has",
        "Dogs are", "DNA stands for", "The speed of sound is", "A prime number is", "The mitochondria is the",
        "HTTP stands for", "The Great Wall of China", "Shakespeare wrote", "def add(a, b):\n    return",
        "class Stack:\n    def __init__(self):", "git commit -m", "The opposite of hot is",
        "The chemical symbol of gold is", "One, two, buckle my shoe. Three, four,",
        "Question: What is 12 x 12?\nAnswer:", "English: Hello\nFrench:", "Jack and Jill went up the",
        "Humpty Dumpty sat on a", "aaaa aaaa aaaa aaaa", "yes no yes no yes no", "0.1, 0.2, 0.3, 0.4, 0.5,",
        "1/2, 1/3, 1/4, 1/5,", "Q: Who wrote Hamlet?\nA:", "x = 1\nx = 2\nx = 3\nx = 4\n",
        "A is for apple. B is for ball. C is for cat. D is for", "1 2 4 8 16 32 64",
        "- item 1\n- item 2\n- item 3\n", '{"id": 1}\n{"id": 2}\n{"id": 3}\n']
"""More of both kinds."""
